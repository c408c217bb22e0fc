#include "core/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/utf8.h"

enum { MAX_DEPTH = sizeof((JsonWriter *)0)->comma };

void json_writer_init(JsonWriter *w) {
    *w = (JsonWriter){0};
}

void json_writer_free(JsonWriter *w) {
    mem_free(w->text);
    *w = (JsonWriter){0};
}

static void append(JsonWriter *w, const char *text, size_t length) {
    if (w->status != STATUS_OK) return;
    if (w->length + length + 1 > w->capacity) {
        size_t capacity = w->capacity > 0 ? 2 * w->capacity : 256;
        while (capacity < w->length + length + 1) capacity *= 2;
        void *block = w->text;
        w->status = mem_grow(&block, (int64_t)capacity, 1, "JSON text");
        if (w->status != STATUS_OK) return;
        w->text = block;
        w->capacity = capacity;
    }
    memcpy(w->text + w->length, text, length);
    w->length += length;
    w->text[w->length] = '\0';
}

static void append_text(JsonWriter *w, const char *text) {
    append(w, text, strlen(text));
}

/* Before a value or key: the comma that separates it from its elder; json_key() resets the flag. */
static void separate(JsonWriter *w) {
    if (w->comma[w->depth]) append(w, ",", 1);
    w->comma[w->depth] = true;
}

static void begin(JsonWriter *w, const char *bracket) {
    separate(w);
    if (w->depth + 1 >= MAX_DEPTH) {
        if (w->status == STATUS_OK) {
            w->status = status_set(STATUS_INTERNAL, "JSON nested deeper than %d levels", MAX_DEPTH);
        }
        return;
    }
    append_text(w, bracket);
    w->comma[++w->depth] = false;
}

static void end(JsonWriter *w, const char *bracket) {
    append_text(w, bracket);
    if (w->depth > 0) w->depth--;
}

void json_begin_object(JsonWriter *w) {
    begin(w, "{");
}
void json_end_object(JsonWriter *w) {
    end(w, "}");
}
void json_begin_array(JsonWriter *w) {
    begin(w, "[");
}
void json_end_array(JsonWriter *w) {
    end(w, "]");
}

static void append_quoted(JsonWriter *w, const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text);
    append(w, "\"", 1);
    while (left > 0) {
        size_t length = utf8_length(p, left);
        if (length == 0) {
            append_text(w, "\xef\xbf\xbd"); /* U+FFFD */
            length = 1;
        } else if (*p == '"' || *p == '\\') {
            char escaped[2] = {'\\', (char)*p};
            append(w, escaped, 2);
        } else if (*p < 0x20 || *p == 0x7f) {
            char escaped[8];
            snprintf(escaped, sizeof escaped,
                     *p == '\n'   ? "\\n"
                     : *p == '\t' ? "\\t"
                                  : "\\u%04x",
                     *p);
            append_text(w, escaped);
        } else {
            append(w, (const char *)p, length);
        }
        p += length;
        left -= length;
    }
    append(w, "\"", 1);
}

void json_key(JsonWriter *w, const char *key) {
    separate(w);
    append_quoted(w, key);
    append(w, ":", 1);
    w->comma[w->depth] = false;
}

void json_string(JsonWriter *w, const char *text) {
    separate(w);
    append_quoted(w, text);
}

void json_int(JsonWriter *w, int64_t value) {
    char text[32];
    separate(w);
    snprintf(text, sizeof text, "%lld", (long long)value);
    append_text(w, text);
}

void json_number(JsonWriter *w, double value) {
    char text[40];
    if (!isfinite(value)) {
        json_null(w);
        return;
    }
    separate(w);
    snprintf(text, sizeof text, "%.9g", value);
    if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    append_text(w, text);
}

void json_bool(JsonWriter *w, bool value) {
    separate(w);
    append_text(w, value ? "true" : "false");
}

void json_null(JsonWriter *w) {
    separate(w);
    append_text(w, "null");
}

void json_pair_string(JsonWriter *w, const char *key, const char *text) {
    json_key(w, key);
    json_string(w, text);
}

void json_pair_int(JsonWriter *w, const char *key, int64_t value) {
    json_key(w, key);
    json_int(w, value);
}

void json_pair_number(JsonWriter *w, const char *key, double value) {
    json_key(w, key);
    json_number(w, value);
}

void json_pair_bool(JsonWriter *w, const char *key, bool value) {
    json_key(w, key);
    json_bool(w, value);
}
