/* How old a page is when its stream opens.
 *
 *   fromCache       whether the browser showed it from its cache, as on Back: then it is as old as when it was loaded
 *   justLoaded()    whether it was made a moment ago; not if it was opened in a tab that nobody saw, whose stream opens
 *                   when it is looked at
 */

const FRESH_MS = 10_000;
const unseen = document.hidden;
const loaded = performance.now();

export const fromCache = performance.getEntriesByType("navigation")[0]?.transferSize === 0;

export const justLoaded = () => !fromCache && !unseen && performance.now() - loaded < FRESH_MS;
