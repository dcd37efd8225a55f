"""Chat: messages to prompt text (templates), and generated text back to messages (parsers)."""
