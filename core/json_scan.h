/* Strict JSON checking and a cursor over checked text, without building a tree.
 *
 * json_check() proves the text well-formed (RFC 8259; UTF-8; no duplicate keys; depth <= 64; no
 * \u0000; numbers within double). The cursor then walks it and meets wrong types, but never wrong
 * syntax: its functions must only be used on text that json_check() accepted.
 */
#ifndef TTV_CORE_JSON_SCAN_H
#define TTV_CORE_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { JSON_MAX_DEPTH = 64 };

/* One value in exactly `size` bytes, white space around it allowed. STATUS_DATA: "<name>: byte <n>:
 * <reason>", of a text of several lines "<name>:<line>: byte <n>: <reason>". */
Status json_check(const char *text, size_t size, const char *name);

typedef struct JsonCursor {
    const char *at, *end;
} JsonCursor;

/* First character of what comes next: { [ " - 0..9 t f n, or a closing } ] inside containers; 0 at
 * the end. */
char json_peek(JsonCursor *c);
/* Enters the object or array that comes next. */
void json_enter(JsonCursor *c);
/* Inside a container: whether another element (array) or key (object) follows; leaves it when not.
 */
bool json_more(JsonCursor *c);
/* Takes a string (or a key with its colon) decoded and NUL-terminated into `out`, which must hold
 * as many bytes as the string occupies in the text with its quotes (json_string_span); returns the
 * decoded length. */
size_t json_take_string(JsonCursor *c, char *out);
/* Bytes of the string that comes next, quotes included. */
size_t json_string_span(JsonCursor *c);
/* Passes over a key and its colon. */
void json_skip_key(JsonCursor *c);
/* Takes any value; true when it was an integer without fraction and exponent that fits. */
bool json_take_int(JsonCursor *c, int64_t *value);
/* Takes any value, containers included. */
void json_skip(JsonCursor *c);

/* Decodes one character of a checked string at *p (escapes resolved) into UTF-8; returns its bytes
 * (1 to 4). */
size_t json_decode_char(const char **p, char out[4]);

#endif
