"""The gateway: the mesh over HTTP, with the caller's credential; nothing of the flow lives in it."""
