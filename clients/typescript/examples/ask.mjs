// Ask one question in Node and print the events' names, the answer and who was shown.
//
//   node clients/typescript/examples/ask.mjs http://127.0.0.1:7080 demo "How often should I oil my chain?"
//
// With `grpc` before the address it speaks gRPC with the orchestrator itself, at port 7070.

import { connectMesh, MeshError } from "evenmesh";
import { grpcMesh } from "evenmesh/node";

const overGrpc = process.argv[2] === "grpc";
const [address, collection, question] = process.argv.slice(overGrpc ? 3 : 2);
const credential = process.env.EVENMESH_API_KEY;
const mesh = overGrpc
  ? grpcMesh({ addresses: { orchestrator: address }, credential })
  : connectMesh({ baseUrl: address, credential });

try {
  const events = mesh.ask(question, {
    source: { case: "collection", value: collection },
    sampling: { alpha: 2, numRankings: 4, seed: 11n },
    skipObservation: true,
  });
  let text = "";
  const seen = [];
  for await (const event of events) {
    if (seen.at(-1) !== event.case) seen.push(event.case);
    if (event.case === "delta") text += event.value.text;
    if (event.case === "report") {
      const shares = event.value.providers.map((one) => [one.name, one.share]);
      console.log(JSON.stringify({ shares, disparity: event.value.eeDNorm }));
    }
  }
  console.log(JSON.stringify({ seen, text }));
} catch (error) {
  if (!(error instanceof MeshError)) throw error;
  const { code, reason, field, rawMessage, retryAfterMs } = error;
  console.log(JSON.stringify({ code, reason, field, message: rawMessage, retryAfterMs }));
}
process.exit(0);
