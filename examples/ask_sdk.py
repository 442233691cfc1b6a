"""Ask the mesh that `make up` keeps running: python examples/ask_sdk.py [QUESTION]"""

import sys

import evenmesh

question = sys.argv[1] if len(sys.argv) > 1 else "How often should I oil my bike chain?"

with evenmesh.Client() as mesh:
    for event in mesh.ask(question, alpha=2, samples=20, num_answers=1):
        match event:
            case evenmesh.Delta(text=text):
                print(text, end="", flush=True)
            case evenmesh.Answer(citations=citations):
                print(
                    "", *(f"  [{one.rank}] {one.passage_id} by {one.provider}" for one in citations), sep="\n"
                )
            case evenmesh.Report(providers=providers):
                print("exposure:", ", ".join(f"{one.name} {one.share:.0%}" for one in providers))
            case evenmesh.Degraded(stage=stage, message=message):
                print(f"{stage} degraded: {message}")
