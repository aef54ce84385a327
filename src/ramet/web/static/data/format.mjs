// Numbers, times and names as people read them.

export function duration(ms) {
  const s = Math.floor(ms / 1000);
  const both = (size, unit, part) => `${Math.floor(s / size)}${unit}${String(Math.floor(s % size / part)).padStart(2, "0")}`;
  if (!(ms >= 0 && ms < Infinity)) return "";
  if (s < 60) return s ? `${s}s` : `${Math.round(ms)}ms`;
  return s < 3600 ? both(60, "m", 1) : s < 86_400 ? both(3600, "h", 60) : `${both(86_400, "d", 3600)}h`;
}

export function count(value) {
  if (value < 1_000) return String(Math.round(value));
  const [size, unit] = value < 1_000_000 ? [1_000, "k"] : [1_000_000, "M"], part = value / size;
  return part.toFixed(part < 10 ? 1 : 0) + unit;
}

export function money(value) {
  if (!value) return "0";
  if (value < 0.0001) return "<0.0001";
  return value < 1 ? value.toFixed(4).replace(/0{1,2}$/, "") : value.toFixed(2);
}

export const megabytes = (value) => (value >= 1024 ? `${(value / 1024).toFixed(1)} GB` : `${Math.round(value)} MB`);
export const percent = (part) => `${Math.round(part * 100)}%`;
const written = (how) => (iso) => (iso ? new Date(iso)[how](undefined, {hour12: false}) : "");
export const clock = written("toLocaleTimeString");
export const dateAndTime = written("toLocaleString");
export const grouped = (n) => Number(n).toLocaleString("en");
export const plural = (n, noun) => `${grouped(n)} ${noun}${n === 1 ? "" : "s"}`;
/** Return a name of the API as words. */
export const spaced = (name) => String(name).replaceAll("_", " ");
