"""Agents that speak the Model Context Protocol (MCP): tools and resources over the mesh."""
