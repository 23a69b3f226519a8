// The panel of counters, with their rates.

let last = null;
onRestart.push(() => { last = null; });

addTable({
  id: "counters",
  title: "Counters",
  narrow: "",
  needs: "counters",
  columns: [
    ["Counter", (each) => spaced(each.name)],
    ["Value", (each) => number(each.value), "n"],
    ["Per second", (each) => each.rate >= 0 ? number(Math.round(each.rate)) : "", "n"],
    ["By store", (each) => each.values.length > 1 ? each.values.map(number).join(" / ") : "", "w"],
  ],
  keyOf: (each) => each.name,
  rows() {
    const { stores, time_s: time } = counted, before = last;
    const sums = (of) => Array.from(new Set(stores.flatMap((store) => Object.keys(store[of]))), (name) => {
      const values = stores.map((store) => store[of][name] ?? 0);
      return { name, values, value: values.reduce((one, other) => one + other, 0) };
    });
    const totals = sums("totals");
    last = { time, values: new Map(totals.map((each) => [each.name, each.value])) };
    if (before?.time < time) {
      for (const each of totals) each.rate = (each.value - before.values.get(each.name)) / (time - before.time);
    }
    return [...sums("now"), ...totals];
  },
});
