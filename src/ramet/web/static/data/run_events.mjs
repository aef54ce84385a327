// The events of one run: the recorded ones and, until it ends, those that come. At most MOST of them are held.
const MOST = 50_000, WAIT_MS = 1_000;

/** Read until `signal`, and again after a break, from the newest cursor. `onEvents(list)` gets them in batches. */
export async function readRun(api, path, {signal, onEvents, onState}) {
  let cursor = "", count = 0, batch = [], frame = 0;
  const send = () => {
    frame = 0;
    const events = batch;
    batch = [];
    if (events.length && !signal.aborted) onEvents(events);
  };
  while (!signal.aborted) {
    try {
      onState({kind: "reading"});
      for await (const event of api.stream(`${path}?follow=true`, {signal, after: cursor})) {
        if (event.type === "done") {
          send();
          return onState({kind: "whole"});
        }
        if (event.type !== "event") throw JSON.parse(event.data);
        cursor = event.id;
        if ((count += 1) > MOST) return onState({kind: "cut", most: MOST});
        batch.push(JSON.parse(event.data));
        frame ||= setTimeout(send, 50);
      }
    } catch (error) {
      if (signal.aborted) return undefined;
      onState({kind: "broken", error});
      if (error.status >= 400) return undefined;
    }
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  }
  return undefined;
}
