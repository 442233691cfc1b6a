// Take the turns of a conversation in Node; print each answer, and relevance and group fairness so far.
//
//   node clients/typescript/examples/talk.mjs http://127.0.0.1:7080 demo "How often should I oil my chain?" "And how do I clean it?"
//
// With `grpc` before the address it speaks gRPC with the orchestrator itself, at port 7070.

import { connectMesh } from "evenmesh";
import { grpcMesh } from "evenmesh/node";

const overGrpc = process.argv[2] === "grpc";
const [address, collection, ...turns] = process.argv.slice(overGrpc ? 3 : 2);
const credential = process.env.EVENMESH_API_KEY;
const mesh = overGrpc
  ? grpcMesh({ addresses: { orchestrator: address }, credential })
  : connectMesh({ baseUrl: address, credential });

const target = { attribute: "provider", groups: ["Quillgate Cycles Handbook", "Small Saddles Library"] };
let conversationId = "";
for (const question of turns) {
  const shown = {};
  const options = { conversationId, ask: { source: { case: "collection", value: collection } }, options: { targets: [target] } };
  for await (const one of mesh.turn(question, options)) {
    if (one.transcript) conversationId = one.conversationId; // the mesh keeps no conversation without a turn
    if (one.event?.event.case === "answer") shown.text = one.event.event.value.answer.text;
    if (one.report) [shown.relevance, shown.fairness] = [one.report.soFar.relevance, one.report.soFar.groupFairness];
    if (one.failed) shown.failed = one.failed.error.message;
  }
  console.log(JSON.stringify(shown));
}
process.exit(0);
