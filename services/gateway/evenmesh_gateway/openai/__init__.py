"""The API of OpenAI, and the rerank APIs of Cohere and Jina, over the mesh."""
