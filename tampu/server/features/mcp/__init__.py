"""MCP servers: their tools, offered to models and run between the rounds of an answer."""
