"""What may be said to a model, and by it: policies, and the screen that applies them.

Pure: texts in, decisions out. Nothing here knows a tenant, a task or a price, reads a file of ours
or reaches the network, so the API, the workers and the command line judge alike.

* `policy`      the document people write: rules in order, each with places and an action
* `screen`      applies a policy to whole texts, and makes an `OutputScreen` for a stream
* `redactions`  which token stands for which text, and the way back for the caller
* `findings`    what is told of a decision: rule, kind and place in the text, never its content
* `detectors`   one module for each way of finding something in a text
"""
