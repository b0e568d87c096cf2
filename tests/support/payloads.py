"""JSON payloads whose bytes a parser, or a format of lines, would change."""

from __future__ import annotations

UGLY = (
    '{\r"cr":\n\n"\u2028\u2029\ufeff\\u0000\\r\\n" ,\r\n\r\n"lone":"\\ud800\\udfff\\udc00",\n\r'
    '"big":123456789012345678901234567890, "float":1.10e+05,"a":1,"a":[ ]\r\r\n \n}'
)
"""Every line end between its tokens, and text that a parser of JSON loses or refuses."""

PAYLOADS = {
    "ugly": UGLY,
    "LF": '{\n\n"a":\n1}',
    "CR": "[\r\r1\r]",
    "CRLF": "[\r\n\r\n1\r\n]",
}
