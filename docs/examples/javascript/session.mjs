// Opens a session, sends a message, and prints its events, one JSON line each, until the turn has ended.
//
// BRAIN_TOKEN=... node session.mjs http://127.0.0.1:8080 script '/stream 5 200 hello'

import { Brain } from "./brain.mjs";

const ENDS = ["turn.completed", "turn.failed", "turn.interrupted"];
const [url, harness, text] = process.argv.slice(2);
const brain = new Brain(url, process.env.BRAIN_TOKEN);
const session = await brain.open(harness, "default");
const said = await brain.say(session, text);
for await (const event of brain.follow(session, said.cursor)) {
  console.log(JSON.stringify(event));
  if (ENDS.includes(event.type) && event.input_id === said.id) break;
}
