/* JSON: strict reading on top of cJSON, and a small writer.
 *
 * Reading adds what cJSON leaves out: duplicate keys, depth (64), trailing bytes and invalid UTF-8
 * are refused with a byte offset. Writing goes to a growing string; numbers are printed so that
 * they read back bit-equal; inf and nan become null.
 */
#ifndef TTV_CORE_JSON_H
#define TTV_CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

struct cJSON;

/* Parses exactly `size` bytes (white space may follow the value). `name` is used in messages. */
Status json_parse(const char *text, size_t size, const char *name, struct cJSON **out);
void json_free(struct cJSON *value);

typedef struct JsonWriter {
    char *text; /* NUL-terminated; NULL before the first write */
    size_t length, capacity;
    int depth;
    bool comma[64];
    Status status; /* sticky */
} JsonWriter;

void json_writer_init(JsonWriter *w);
void json_writer_free(JsonWriter *w);
void json_begin_object(JsonWriter *w);
void json_end_object(JsonWriter *w);
void json_begin_array(JsonWriter *w);
void json_end_array(JsonWriter *w);
void json_key(JsonWriter *w, const char *key);
void json_string(JsonWriter *w, const char *text); /* invalid UTF-8 bytes become U+FFFD */
void json_int(JsonWriter *w, int64_t value);
/* The shorter of %.9g and %.17g that reads back; null if not finite. */
void json_number(JsonWriter *w, double value);
void json_bool(JsonWriter *w, bool value);
void json_null(JsonWriter *w);
/* key and value in one call */
void json_pair_string(JsonWriter *w, const char *key, const char *text);
void json_pair_int(JsonWriter *w, const char *key, int64_t value);
void json_pair_number(JsonWriter *w, const char *key, double value);
void json_pair_bool(JsonWriter *w, const char *key, bool value);

#endif
