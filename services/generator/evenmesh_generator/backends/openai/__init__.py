"""Models of OpenAI-compatible servers (vLLM, NIM, TGI, Ollama, …), over HTTP."""
