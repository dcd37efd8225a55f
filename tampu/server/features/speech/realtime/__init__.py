"""Live transcription over a WebSocket, in the form of OpenAI's API."""
