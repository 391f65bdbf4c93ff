// An executor: a tool that runs here, in this process, for agents that run on the server.
//
// BRAIN_TOKEN=... node executor.mjs http://127.0.0.1:8080 sse                 // a new one, for sessions that are made with it
// BRAIN_TOKEN=... node executor.mjs http://127.0.0.1:8080 websocket SESSION   // takes over the binding of a session
//
// It prints a line of JSON each time that it is connected, and for each call. WebSockets are part of Node.js from version 22 on; version
// 20 has them with --experimental-websocket.
//
// Rules: a call that was dispatched is never sent again; a lost connection is opened again; an executor that is gone (its credential has
// ended, somebody closed it) is replaced by a new one, which is bound to the session that the old one has served.

import { Brain, Refused, TRIES, pause } from "./brain.mjs";

const BINDING = "calc";
const TOOLS = [
  {
    name: "add",
    description: "Adds two numbers.",
    input_schema: {
      type: "object",
      properties: { a: { type: "number" }, b: { type: "number" } },
      required: ["a", "b"],
      additionalProperties: false,
    },
  },
];
const GONE = [401, 403, 404, 409];

/** The executor can't be used any more. */
class Gone extends Error {}

class Executor {
  constructor(brain, session) {
    this.brain = brain;
    this.session = session;
  }

  /** A new executor, bound to the session if one is known. */
  async register() {
    const body = { binding: BINDING, tools: TOOLS, ...(this.session ? { session: this.session } : {}) };
    Object.assign(this, await this.brain.call("POST", "/executors", body)); // id, token
  }

  /** Answers calls until somebody else has taken this executor's place, or nothing can be reached any more. */
  async serve(transport) {
    for (let failed = 0; failed < TRIES; await pause(++failed)) {
      try {
        if (!this.id) await this.register();
        for await (const [command, reply] of transport(this)) {
          failed = 0;
          if (command.type === "replaced") return;
          this.take(command, reply);
        }
      } catch (error) {
        if (error instanceof Gone) this.id = undefined;
        else if (error instanceof Refused && error.status !== 429 && error.status < 500) throw error;
      }
    }
    throw new Error(`no connection in ${TRIES} tries`);
  }

  take(command, reply) {
    if (command.type === "ready") {
      console.log(JSON.stringify({ ready: this.id }));
    } else if (command.type === "call") {
      this.session = command.scope.session_id;
      void this.answer(command, reply);
    } else if (command.type === "closed") {
      throw new Gone();
    } else {
      console.log(JSON.stringify(command)); // cancel: a longer tool would stop now
    }
  }

  async answer({ connection, call_id, arguments: { a, b } }, reply) {
    console.log(JSON.stringify({ call: { a, b } }));
    try {
      await reply({ connection, call_id, progress: { message: "adding" } });
      await reply({ connection, call_id, result: { content: [{ type: "text", text: String(a + b) }] } });
    } catch (error) {
      // the connection went: the agent was told that the outcome is unknown, and nobody waits for it
      console.log(JSON.stringify({ lost: String(error) }));
    }
  }
}

/** Commands as server-sent events, replies as POSTs. */
async function* sse({ brain, id, token }) {
  const reply = (body) => brain.call("POST", `/executors/${id}/responses`, body, token);
  try {
    for await (const command of brain.stream(`/executors/${id}/commands`, token)) yield [command, reply];
  } catch (error) {
    throw error instanceof Refused && GONE.includes(error.status) ? new Gone() : error;
  }
}

/** The same on one connection, both ways. A WebSocket doesn't say why it was refused, so one that was is reason to register anew. */
async function* websocket({ brain, id, token }) {
  const socket = new WebSocket(`${brain.url.replace(/^http/, "ws")}/executors/${id}/rpc`, ["brain-rpc", `brain-auth.${token}`]);
  const commands = [];
  let opened = false;
  let wake = () => {};
  socket.onopen = () => (opened = true);
  socket.onmessage = ({ data }) => (commands.push(JSON.parse(data)), wake());
  socket.onclose = () => (commands.push(null), wake());
  socket.onerror = () => {}; // a close follows
  const reply = async (body) => {
    if (socket.readyState !== WebSocket.OPEN) throw new Error("the connection is closed");
    socket.send(JSON.stringify(body));
  };
  try {
    for (;;) {
      while (commands.length === 0) await new Promise((resolve) => (wake = resolve));
      const command = commands.shift();
      if (command === null) break;
      yield [command, reply];
    }
  } finally {
    socket.close();
  }
  if (!opened) throw new Gone();
}

const [url, transport, session] = process.argv.slice(2);
await new Executor(new Brain(url, process.env.BRAIN_TOKEN), session).serve({ sse, websocket }[transport]);
