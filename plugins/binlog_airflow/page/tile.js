// The tile on Airflow's dashboard: the headlines, in a frame; nothing for who may not see them.
globalThis.AirflowPlugin = function PumphouseTile() {
  const { createElement, useEffect, useState } = globalThis.React;
  const [shown, show] = useState(false);
  const at = new URL("pumphouse/tile", document.baseURI).href;
  useEffect(() => {
    fetch(at).then((answer) => show(answer.ok)).catch(() => show(false));
  }, []);
  const grow = (event) => {
    event.target.style.height = `${event.target.contentDocument.body.offsetHeight}px`;
  };
  return shown
    ? createElement("iframe", { src: at, title: "Pumphouse", onLoad: grow, style: { border: 0, order: 0, width: "100%" } })
    : null;
};
