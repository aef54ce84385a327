// The events of one run: the recorded ones and, until it ends, those that come. At most MOST of them are held.
import {Refusal} from "./api.mjs";

const MOST = 50_000, MOST_CHARACTERS = 100_000_000, WAIT_MS = 1_000;
// A browser opens six connections to a server, for all tabs: at most this many are for streams of runs.
const STREAMS = 2, STREAM = "ramet-run-stream-";

/** Call `use(follow)`: with true in a tab that may keep a stream open, with false in others. */
async function withStream(signal, use) {
  if (!navigator.locks) return use(!document.hidden);
  for (let number = 0; number < STREAMS; number += 1) {
    const tried = await navigator.locks.request(STREAM + number, {ifAvailable: true}, async (lock) => (lock && !signal.aborted ? (await use(true), true) : false));
    if (tried) return undefined;
  }
  return signal.aborted ? undefined : use(false);
}

/**
 * Read until `signal`, and again after a break, from the newest cursor. `onEvents(list)` gets them in batches. Where
 * other tabs have all the streams, the events are asked for again and again.
 */
export async function readRun(api, path, {signal, onEvents, onState}) {
  let cursor = "", count = 0, size = 0, batch = [], frame = 0, isOver = false, newest = "";
  const send = () => {
    frame = 0;
    const events = batch;
    batch = [];
    if (events.length && !signal.aborted) onEvents(events);
  };
  const end = (state) => {
    isOver = true;
    send();
    onState(state);
  };
  const read = async (follow) => {
    for await (const event of api.stream(`${path}?follow=${follow}`, {signal, after: cursor})) {
      if (event.type === "done") return follow || newest === "run_ended" ? end({kind: "whole"}) : undefined;
      if (event.type !== "event") {
        const problem = JSON.parse(event.data);
        throw new Refusal(problem.status || 500, problem.detail || "The stream failed.");
      }
      cursor = event.id;
      if ((count += 1) > MOST || (size += event.data.length) > MOST_CHARACTERS) return end({kind: "cut", most: count - 1});
      const data = JSON.parse(event.data);
      newest = data.type;
      batch.push(data);
      frame ||= setTimeout(send, 50);
    }
    return undefined;
  };
  while (!signal.aborted) {
    try {
      onState({kind: "reading"});
      await withStream(signal, read);
      if (isOver) return;
    } catch (error) {
      if (signal.aborted) return;
      onState({kind: "broken", error});
      if (error.status >= 400 && error.status < 500) return;
    }
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  }
}
