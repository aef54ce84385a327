// A parser of server-sent events. Lines come in pieces of any size; a long line is joined once, when it is complete.

export class EventParser {
  #parts = [];
  #event = {type: "", id: "", data: []};

  /** Return the events that are complete with this piece of text. */
  push(text) {
    const events = [];
    let start = 0;
    for (let end = text.indexOf("\n"); end !== -1; end = text.indexOf("\n", start)) {
      this.#parts.push(text.slice(start, end));
      const line = this.#parts.length === 1 ? this.#parts[0] : this.#parts.join("");
      this.#parts = [];
      start = end + 1;
      const event = this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event) events.push(event);
    }
    if (start < text.length) this.#parts.push(text.slice(start));
    return events;
  }

  #line(line) {
    const event = this.#event;
    if (line === "") {
      this.#event = {type: "", id: "", data: []};
      return event.type || event.data.length
        ? {type: event.type || "message", id: event.id, data: event.data.join("\n")} : null;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null; // A heartbeat.
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") event.type = value;
    else if (field === "data") event.data.push(value);
    else if (field === "id" && !value.includes("\0")) event.id = value;
    return null;
  }
}

/** Yield the events of a body; `heard` is called for each piece, heartbeats included. */
export async function* readEvents(body, heard = () => {}) {
  const parser = new EventParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
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
