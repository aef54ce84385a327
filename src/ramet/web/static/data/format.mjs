// Numbers and times in few characters.

export function duration(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 1000) return `${Math.round(ms)}ms`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${String(s % 60).padStart(2, "0")}`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h${String(Math.floor(s / 60) % 60).padStart(2, "0")}`;
  return `${Math.floor(s / 86_400)}d${String(Math.floor(s / 3600) % 24).padStart(2, "0")}h`;
}

export function count(value) {
  if (value < 1_000) return String(Math.round(value));
  if (value < 10_000) return `${(value / 1_000).toFixed(1)}k`;
  if (value < 1_000_000) return `${Math.round(value / 1_000)}k`;
  return `${(value / 1_000_000).toFixed(value < 10_000_000 ? 1 : 0)}M`;
}

export function money(value) {
  if (!value) return "0";
  if (value < 0.0001) return "<0.0001";
  return value < 1 ? value.toFixed(4).replace(/0{1,2}$/, "") : value.toFixed(2);
}

export const megabytes = (value) => (value >= 1024 ? `${(value / 1024).toFixed(1)} GB` : `${Math.round(value)} MB`);
export const percent = (part) => `${Math.round(part * 100)}%`;
export const clock = (iso) => (iso ? new Date(iso).toLocaleTimeString(undefined, {hour12: false}) : "");
export const dateAndTime = (iso) => (iso ? new Date(iso).toLocaleString(undefined, {hour12: false}) : "");
const whole = new Intl.NumberFormat("en");
export const grouped = (n) => whole.format(n);
export const plural = (n, noun) => `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;
