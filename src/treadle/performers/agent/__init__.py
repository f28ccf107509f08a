"""An agent workflow's outside: models, skills, MCP servers, sources, and the visits that use them."""
