// Hooks that several views share.
import {useEffect, useReducer, useState} from "../html.mjs";

/** Call `hear` of the first drawing at each event of the window of that kind. */
export const useListener = (kind, hear) => useEffect(() => {
  addEventListener(kind, hear);
  return () => removeEventListener(kind, hear);
}, []);

/** Return whether the keys of an event are a text that someone writes. */
export const isTyping = ({target}) => /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

/** Return a function that draws the component again. */
export const useDraw = () => useReducer((value) => value + 1, 0)[1];

/** Draw again after changes of the rows, at most once a frame, and not while the tab is hidden. */
export function useRows(rows) {
  const draw = useDraw();
  useEffect(() => {
    let frame = 0;
    const stop = rows.subscribe(() => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        draw();
      });
    });
    return () => (stop(), cancelAnimationFrame(frame));
  }, [rows]);
}

/** Return the time, drawn again each `ms`. */
export function useNow(ms = 1000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

/**
 * Return {value, error, reload} of an asynchronous `load(signal)`. It is called again when `inputs` change and, with
 * `every_ms`, while the tab is visible.
 */
export function useLoaded(load, inputs, every_ms = 0) {
  const [state, set] = useState({value: null, error: null});
  const [round, reload] = useReducer((value) => value + 1, 0);
  useEffect(() => {
    const end = new AbortController();
    let isUnderWay = false; // A slow server is not asked again meanwhile: the connections of a browser are few.
    const once = async () => {
      isUnderWay = true;
      const state = await load(end.signal).then((value) => ({value, error: null}), (error) => ({error}));
      isUnderWay = false;
      if (!end.signal.aborted) set((old) => ({...old, ...state}));
    };
    once();
    const timer = every_ms && setInterval(() => document.hidden || isUnderWay || once(), every_ms);
    return () => (end.abort(), clearInterval(timer));
  }, [...inputs, round]);
  return {...state, reload};
}

/** Return {value, error, reload} of what a path of the API answers. */
export const useGet = ({api}, path, every_ms) => useLoaded((signal) => api.get(path, {signal}), [api, path], every_ms);
