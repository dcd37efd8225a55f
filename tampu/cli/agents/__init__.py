"""The settings of coding agents, and how they are changed and put back."""
