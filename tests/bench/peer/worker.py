# SPDX-License-Identifier: Apache-2.0
"""One task in a process of its own, as worker.js does it: argv names the modules to import beforehand."""
import importlib
import inspect
import json
import sys

for module in sys.argv[1].split(","):
    importlib.import_module(module)
print("ready", flush=True)
task = json.loads(sys.stdin.readline())
try:
    names = {"variables": task["variables"]}
    exec(compile(task["code"], "<code>", "exec"), names)
    main, given = names["main"], task["variables"]
    wanted = inspect.signature(main).parameters
    value = main(**{name: given[name] for name in wanted if name in given}) if wanted else main()
    answer = {"success": True, "data": {"codeReturn": value, "log": ""}}
except BaseException as error:
    answer = {"success": False, "message": str(error)}
print(json.dumps(answer, ensure_ascii=False, default=str), flush=True)
