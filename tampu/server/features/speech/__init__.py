"""Speech as text, whole or while it is spoken, in the form of OpenAI's API."""
