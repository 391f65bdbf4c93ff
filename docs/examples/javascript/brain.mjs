// A small client of the Brain API for Node.js 18 or later, without dependencies: sessions and their events.
//
// Rules: whatever is repeated is safe to repeat; waits between tries grow and have a bound; a stream that breaks goes on behind the last
// cursor, so that no event is missed and none comes twice.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

export const TRIES = 8;
const LONGEST_WAIT = 8000; // ms
const SILENCE = 30000; // ms; the server says something every ten seconds

/** The server refused: `status` says how. */
export class Refused extends Error {
  constructor(response, text) {
    super(`status ${response.status}: ${text}`);
    this.status = response.status;
    this.headers = response.headers;
  }
}

/** Waits before the next try: longer each time, and not all clients at once. */
export function pause(attempt) {
  return sleep(Math.min(LONGEST_WAIT, 250 * 2 ** attempt) * (0.5 + Math.random() / 2));
}

/** One server and one token. */
export class Brain {
  constructor(url, token) {
    this.url = url.replace(/\/$/, "");
    this.token = token;
  }

  /** One request; its answer's JSON. Throws Refused, or TypeError where there is no connection. */
  async call(method, path, body, token = this.token) {
    const response = await fetch(this.url + path, {
      method,
      headers: { Authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(SILENCE),
    });
    if (!response.ok) throw new Refused(response, await response.text());
    return response.json();
  }

  /** A new session's id. It isn't repeated: a second try could make a second session. */
  async open(harness, model, config = {}) {
    return (await this.call("POST", "/sessions", { harness, config: { model, tools: [], ...config } })).id;
  }

  /** Sends a message and answers its event. The key makes it safe to send again: it runs once. */
  async say(session, text, key = randomUUID()) {
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.call("POST", `/sessions/${session}/events`, { type: "user.message", text, key });
      } catch (error) {
        const passing = !(error instanceof Refused) || error.status === 429 || error.status === 503;
        if (!passing || attempt === TRIES - 1) throw error;
      }
      await pause(attempt);
    }
  }

  /**
   * A session's events behind a cursor (from the beginning without one), for as long as it lives, through lost connections.
   * An `assistant.delta` has no cursor: what a lost connection took of those is in the `assistant.message` that follows.
   */
  async *follow(session, after) {
    for (let failed = 0; failed < TRIES; ) {
      const where = after === undefined ? "" : `?after=${encodeURIComponent(after)}`;
      try {
        for await (const event of this.stream(`/sessions/${session}/events${where}`)) {
          failed = 0;
          after = event.cursor ?? after;
          yield event;
          if (event.type === "session.closed") return;
        }
      } catch (error) {
        if (error instanceof Refused && error.status === 409) {
          after = error.headers.get("Byre-Earliest-Cursor") ?? undefined; // the place is gone
        } else if (error instanceof Refused && error.status !== 429 && error.status !== 503) {
          throw error;
        }
        failed++;
      }
      await pause(failed);
    }
    throw new Error(`no connection in ${TRIES} tries`);
  }

  /** The JSON values in the `data` of a stream of server-sent events. */
  async *stream(path, token = this.token) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE);
    try {
      const response = await fetch(this.url + path, {
        headers: { Authorization: `Bearer ${token}`, Accept: "text/event-stream" },
        signal: silent.signal,
      });
      if (!response.ok) throw new Refused(response, await response.text());
      const decoder = new TextDecoder();
      let rest = "";
      let data = [];
      for await (const piece of response.body) {
        timer.refresh();
        const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          if (line.startsWith("data:")) {
            data.push(line.slice(5).replace(/^ /, ""));
          } else if (line === "" && data.length > 0) {
            yield JSON.parse(data.join("\n"));
            data = [];
          }
        }
      }
    } finally {
      clearTimeout(timer);
      silent.abort();
    }
  }
}
