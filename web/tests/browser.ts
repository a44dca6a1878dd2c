/** What modules read of the browser when they are loaded. */
const kept = new Map<string, string>();
Object.assign(globalThis, {
  sessionStorage: { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => kept.set(k, v), removeItem: (k: string) => kept.delete(k) },
});
