/* Whether the browser showed this page from its cache, as on Back: then it is as old as when it was loaded. */
export const fromCache = performance.getEntriesByType("navigation")[0]?.transferSize === 0;
