// Limits of a run as bars: what is used, what is reserved, what is left, and which limit comes first.
import {count, duration, money, percent, spaced} from "../data/format.mjs";

const NAMES = {__proto__: null, usd: "USD", seconds: "time"};

/** Return the limits of a row, the one that comes first at the beginning. */
export const limitsOf = (row) => Object.entries(row.limits ?? {}).map(([name, each]) => {
  const [limit, used, reserved] = ["limit", "used", "reserved"].map((part) => Number(each[part]) || 0);
  const usedPart = limit ? Math.min(1, used / limit) : 1, reservedPart = limit ? Math.min(1 - usedPart, reserved / limit) : 0;
  const label = NAMES[name] ?? spaced(name), isTime = label === "time";
  const amount = (value) => (isTime ? duration(value * 1000) : (name === "usd" ? money : count)(value));
  const words = `${label}: ${amount(used)} of ${amount(limit)} used${reserved ? `, ${amount(reserved)} reserved` : ""}, ${
    amount(Math.max(0, limit - used - reserved))} left`;
  const part = usedPart + reservedPart;
  return {name, part, usedPart, reservedPart, words, short: `${label} ${percent(part)}`};
}).sort((a, b) => b.part - a.part);
