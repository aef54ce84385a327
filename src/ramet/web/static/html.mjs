// Preact, its hooks and htm under one name. Components are functions; `html` builds text nodes, never markup from text.
import {h, render} from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export {render};
export {useEffect, useErrorBoundary, useLayoutEffect, useMemo, useReducer, useRef, useState} from "./vendor/hooks.mjs";
export const html = htm.bind(h);
