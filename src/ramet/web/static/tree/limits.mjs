// Limits of a run as bars: what is used, what is reserved, what is left, and which limit comes first.
import {count, duration, money, percent} from "../data/format.mjs";

const NAMES = {
  __proto__: null,
  usd: "USD", tokens: "tokens", model_calls: "model calls", tool_calls: "tool calls", agents: "agents",
  seconds: "time", time: "time",
};
const amount = (name, value) =>
  (name === "usd" ? money(value) : name === "seconds" || name === "time" ? duration(value * 1000) : count(value));

/** Return the limits of a row, the one that comes first at the beginning. */
export function limitsOf(row) {
  return Object.entries(row.limits ?? {}).map(([name, each]) => {
    const limit = Number(each.limit) || 0, used = Number(each.used) || 0, reserved = Number(each.reserved) || 0;
    const usedPart = limit ? Math.min(1, used / limit) : 1;
    const reservedPart = limit ? Math.min(1 - usedPart, reserved / limit) : 0;
    const left = Math.max(0, limit - used - reserved);
    const words = `${NAMES[name] ?? name.replaceAll("_", " ")}: ${amount(name, used)} of ${amount(name, limit)} used`
      + `${reserved ? `, ${amount(name, reserved)} reserved` : ""}, ${amount(name, left)} left`;
    return {name, label: NAMES[name] ?? name, limit, used, reserved, left, usedPart, reservedPart, words};
  }).sort((a, b) => b.usedPart + b.reservedPart - a.usedPart - a.reservedPart);
}

export const shortLimit = (each) => `${each.label} ${percent(each.usedPart + each.reservedPart)}`;
