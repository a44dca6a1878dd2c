/** Attention weights made ready to be drawn. */

export interface Slice { pos: number; weight: number }
export interface Orbit { parts: Slice[]; rest: number; restCount: number; sink: number }

/** Weights without the first token's, which add to what they were: the sink hidden, the others renormalised. */
export function withoutSink(weights: readonly number[]): number[] {
  const left = weights.slice(1).reduce((a, b) => a + b, 0);
  return weights.map((w, i) => (i === 0 ? 0 : left > 0 ? w / left : 0));
}

/** The `most` heaviest keys in order of place, and what all others and the learned sink take: together 1. */
export function orbit(weights: readonly number[], most: number, sink = 0): Orbit {
  const order = weights.map((weight, pos) => ({ pos, weight })).sort((a, b) => b.weight - a.weight || a.pos - b.pos);
  const parts = order.slice(0, most).filter((p) => p.weight > 0);
  const rest = order.slice(parts.length).reduce((a, b) => a + b.weight, 0);
  return { parts: parts.sort((a, b) => a.pos - b.pos), rest, restCount: order.length - parts.length, sink };
}

/** The heaviest of them and where they are, in one pass. */
export function heaviest(weights: readonly number[], most: number): [pos: number, weight: number][] {
  const found: [number, number][] = [];
  weights.forEach((weight, pos) => {
    if (found.length === most && weight <= found[most - 1][1]) return;
    const at = found.findIndex(([, w]) => w < weight);
    found.splice(at < 0 ? found.length : at, 0, [pos, weight]);
    if (found.length > most) found.pop();
  });
  return found;
}
