"""Ask a gateway by LangChain and by Cohere's client; print what they found as JSON.

Run by a Python that has langchain-openai, langchain-cohere and cohere: ``PYTHON THIS URL QUESTION DOCUMENT...``
"""

import json
import sys

import cohere
from langchain_cohere import CohereRerank
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

url, question, *documents = sys.argv[1:]
model = ChatOpenAI(
    model="evenmesh/demo",
    base_url=f"{url}/v1",
    api_key="none",
    extra_body={"evenmesh": {"skipObservation": True}},
)
embeddings = OpenAIEmbeddings(
    model="evenmesh", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
)
rerank = CohereRerank(base_url=url, cohere_api_key="none", model="cross-encoder", top_n=2)
ranked = cohere.ClientV2(base_url=url, api_key="none").rerank(
    model="cross-encoder", query=question, documents=documents, top_n=2
)
found = {
    "answer": model.invoke(question).content,
    "streamed": "".join(str(chunk.content) for chunk in model.stream(question)),
    "vectors": embeddings.embed_documents(documents),
    "query": embeddings.embed_query(question),
    "langchain_order": [one["index"] for one in rerank.rerank(documents, question)],
    "cohere_order": [one.index for one in ranked.results],
}
sys.stdout.write(json.dumps(found) + "\n")
