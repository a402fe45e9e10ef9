"""The sandbox: model-written code, run by the thousand, contained. Standard library only, Python >= 3.9.

>>> from muster.sandbox import Client
>>> with Client("http://127.0.0.1:6000") as box:  # doctest: +SKIP
...     print(box.execute("print(6 * 7)", language="python").stdout)
42
"""
