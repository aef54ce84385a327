// A parser of server-sent events. Lines come in pieces of any size; a long line is joined once, when it is complete.

export class EventParser {
  #parts = [];
  #event = {type: "", id: "", data: []};

  /** Return the events that are complete with this piece of text. */
  push(text) {
    const events = [];
    let start = 0;
    for (let end = text.indexOf("\n"); end !== -1; end = text.indexOf("\n", start)) {
      const line = [...this.#parts, text.slice(start, end)].join("").replace(/\r$/, ""), {type, id, data} = this.#event;
      this.#parts = [];
      start = end + 1;
      if (line) {
        this.#line(line);
      } else {
        if (type || data.length) events.push({type: type || "message", id, data: data.join("\n")});
        this.#event = {type: "", id: "", data: []};
      }
    }
    if (start < text.length) this.#parts.push(text.slice(start));
    return events;
  }

  #line(line) {
    const colon = line.indexOf(":"), field = colon < 0 ? line : line.slice(0, colon); // Without a field: a heartbeat.
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#event.type = value;
    if (field === "data") this.#event.data.push(value);
    if (field === "id" && !value.includes("\0")) this.#event.id = value;
  }
}

/** Yield the events of a body; `heard` is called for each piece, heartbeats included. */
export async function* readEvents(body, heard = () => {}) {
  const parser = new EventParser(), reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      heard();
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
