// Search without a server: a browser starts no worker from a file, so a hidden frame runs the worker's script.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      const page = this.inside.document
      page.open()
      page.write(
        "<script>postMessage = data => parent.dispatchEvent(Object.assign(new Event('of worker'), { data, source: self }));" +
        "importScripts = async (...all) => { for (const src of all) await new Promise((onload, onerror) => " +
        "document.body.append(Object.assign(document.createElement('script'), { src, onload, onerror, async: false }))) }" +
        "</scr" + `ipt><script src="${address}"></scr` + "ipt>")
      page.close()
      this.loaded = new Promise(done => frame.addEventListener("load", done))
      addEventListener("of worker", told => {
        if (told.source === this.inside) this.dispatchEvent(new MessageEvent("message", { data: told.data }))
      })
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.inside.frameElement.remove()
    }
  }
