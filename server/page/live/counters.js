// The panel of counters, with their rates.

const countersTable = grid("Counters");
let last = null;
onRestart.push(() => { last = null; });

addPanel({
  id: "counters",
  title: "Counters",
  body: [countersTable],
  needs: "counters",
  async look() {
    const it = counted;
    const sums = (of) => {
      const found = new Map();
      for (const store of it.stores) {
        for (const [name, value] of Object.entries(store[of])) found.set(name, [...(found.get(name) ?? []), value]);
      }
      return Array.from(found, ([name, values]) => ({ name, values, value: values.reduce((a, b) => a + b, 0) }));
    };
    const totals = sums("totals"), now = sums("now"), before = last;
    last = { time: it.time_s, values: new Map(totals.map((each) => [each.name, each.value])) };
    for (const each of totals) {
      const grown = each.value - (before?.values.get(each.name) ?? each.value);
      each.rate = before && last.time > before.time && grown >= 0 ? grown / (last.time - before.time) : null;
    }
    fill(countersTable, [
      ["Counter", (each) => each.name.replaceAll("_", " ")],
      ["Value", (each) => number(each.value), "n"],
      ["Per second", (each) => typeof each.rate === "number" ? number(Math.round(each.rate)) : "", "n"],
      ["By store", (each) => each.values.length > 1 ? each.values.map(number).join(" / ") : "", "w"],
    ], [...now, ...totals], (each) => each.name);
  },
});
