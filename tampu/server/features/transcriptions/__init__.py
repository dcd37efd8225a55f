"""Speech as text, in the form of OpenAI's API."""
