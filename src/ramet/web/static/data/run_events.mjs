// The events of one run: the recorded ones and, until it ends, those that come. The newest of them are held.
import {Transcript, transcriptOf} from "./transcript.mjs";

const MOST = 50_000, MOST_CHARACTERS = 100_000_000, WAIT_MS = 1_000;
// A browser opens six connections to a server, for all tabs: at most this many are for streams of runs.
const STREAMS = 2, STREAM = "ramet-run-stream-";

/** The newest events of a run, within bounds, and their transcript. */
export class EventWindow {
  events = [];
  dropped = 0; //: earlier events, which are not held
  transcript = new Transcript();
  #sizes = [];
  #size = 0;

  /** Add an event, whose text has `size` characters. Beyond a bound the oldest ones are dropped, until a tenth is free. */
  push(event, size) {
    const {events} = this;
    events.push(event);
    this.transcript.apply(event);
    this.#size += size;
    if (this.#sizes.push(size) <= MOST && this.#size <= MOST_CHARACTERS) return;
    let count = 0;
    for (; events.length - count > 1 && (events.length - count > MOST * 0.9 || this.#size > MOST_CHARACTERS * 0.9); count += 1) this.#size -= this.#sizes[count];
    events.splice(0, count);
    this.#sizes.splice(0, count);
    this.dropped += count;
    this.transcript = transcriptOf(events);
  }
}

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
 * Read into `window` until `signal`, and again after a break, from the newest cursor; with `before`, only the events
 * with smaller numbers. Where other tabs have all the streams, the events are asked for again and again.
 */
export async function readRun(api, path, window, {signal, before, onChange, onState}) {
  let cursor = "", timer = 0, isOver = false, newest = "";
  const read = async (follow) => {
    for await (const {type, id, data} of api.stream(`${path}?follow=${follow}`, {signal, after: cursor})) {
      const event = type === "event" && JSON.parse(data);
      isOver = event ? before > 0 && event.seq >= before : follow || newest === "run_ended";
      if (isOver || !event) return;
      cursor = id;
      newest = event.type;
      window.push(event, data.length);
      timer ||= setTimeout(() => (timer = 0, signal.aborted || onChange()), 50);
    }
  };
  while (!signal.aborted) {
    try {
      onState({kind: "reading"});
      await (before ? read(false) : withStream(signal, read));
      if (isOver) return onState({kind: "whole"});
    } catch (error) {
      if (signal.aborted) return;
      onState({kind: "broken", error});
      if (error.status >= 400 && error.status < 500) return;
    }
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  }
}
