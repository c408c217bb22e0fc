/* The strict check of JSON text: a recursive descent that keeps only the keys of open objects. */
#include "core/json_scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/utf8.h"

enum { MAX_NUMBER = 60 }; /* characters; cJSON reads numbers through a 64-byte buffer */

typedef struct Key {
    uint64_t hash;  /* of the decoded text */
    const char *at; /* first character inside the quotes */
} Key;

typedef struct Scan {
    const char *begin, *at, *end;
    const char *name;
    int depth;
    Key *keys; /* of all open objects, outermost first */
    int64_t key_count, key_capacity;
} Scan;

/* With the line where there are several: a person has an editor, not a hex dump, for those. */
static Status fault_at(const Scan *s, const char *at, const char *reason) {
    const size_t byte = (size_t)(at - s->begin);
    int64_t line = 1, lines;
    for (const char *p = s->begin; p < at; p++) line += *p == '\n';
    lines = line;
    for (const char *p = at; p < s->end; p++) lines += *p == '\n';
    if (lines > 1)
        return status_set(STATUS_DATA, "%s:%lld: byte %zu: %s", s->name, (long long)line, byte,
                          reason);
    return status_set(STATUS_DATA, "%s: byte %zu: %s", s->name, byte, reason);
}

static Status fault(const Scan *s, const char *reason) {
    if (s->at >= s->end) return fault_at(s, s->end, "the JSON text ends too early");
    return fault_at(s, s->at, reason);
}

static void skip_space(Scan *s) {
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) {
        s->at++;
    }
}

/* The four hex digits at `at`, or -1. */
static int32_t hex4(const char *at, const char *end) {
    if (end - at < 4) return -1;
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* s->at stands on the backslash. */
static Status scan_escape(Scan *s) {
    const char *at = s->at;
    if (s->end - at < 2) return fault_at(s, s->end, "the JSON text ends too early");
    s->at += 2;
    if (at[1] != 'u') {
        return strchr("\"\\/bfnrt", at[1]) != NULL && at[1] != '\0'
                   ? STATUS_OK
                   : fault_at(s, at, "unknown escape in a string");
    }
    int32_t unit = hex4(at + 2, s->end);
    if (unit < 0) return fault_at(s, at, "\\u needs four hexadecimal digits");
    if (unit == 0) return fault_at(s, at, "\\u0000 is not accepted in a string");
    s->at += 4;
    if (unit < 0xd800 || unit > 0xdfff) return STATUS_OK;
    int32_t low =
        s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u' ? hex4(s->at + 2, s->end) : -1;
    if (unit > 0xdbff || low < 0xdc00 || low > 0xdfff) {
        return fault_at(s, at, "half of a surrogate pair in a string");
    }
    s->at += 6;
    return STATUS_OK;
}

static Status scan_string(Scan *s) {
    if (s->at >= s->end || *s->at != '"') return fault(s, "expected a string");
    s->at++;
    while (s->at < s->end && *s->at != '"') {
        unsigned char c = (unsigned char)*s->at;
        if (c == '\\') {
            TRY(scan_escape(s));
            continue;
        }
        if (c < 0x20) return fault(s, "control character in a string");
        size_t length = utf8_length((const unsigned char *)s->at, (size_t)(s->end - s->at));
        if (length == 0) return fault(s, "invalid UTF-8");
        s->at += length;
    }
    if (s->at >= s->end) return fault(s, "");
    s->at++;
    return STATUS_OK;
}

static bool scan_digits(Scan *s) {
    const char *start = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    return s->at > start;
}

static Status scan_number(Scan *s) {
    const char *start = s->at;
    if (*s->at == '-') s->at++;
    bool zero = s->at < s->end && *s->at == '0';
    const char *digits = s->at;
    if (!scan_digits(s)) return fault(s, "expected a digit");
    if (zero && s->at - digits > 1) return fault_at(s, digits, "a number with a leading zero");
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!scan_digits(s)) return fault(s, "expected a digit");
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        if (!scan_digits(s)) return fault(s, "expected a digit");
    }
    char copy[MAX_NUMBER + 1];
    size_t length = (size_t)(s->at - start);
    if (length > MAX_NUMBER) return fault_at(s, start, "a number of more than 60 characters");
    memcpy(copy, start, length);
    copy[length] = '\0';
    return isfinite(strtod(copy, NULL)) ? STATUS_OK : fault_at(s, start, "number out of range");
}

static Status scan_word(Scan *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(s->end - s->at) >= length && memcmp(s->at, words[i], length) == 0) {
            s->at += length;
            return STATUS_OK;
        }
    }
    return fault(s, "expected a JSON value");
}

/* FNV-1a over the decoded characters, so that "a" and "\u0061" meet. */
static uint64_t key_hash(const char *p) {
    uint64_t hash = 0xcbf29ce484222325u;
    while (*p != '"') {
        char c[4];
        size_t n = json_decode_char(&p, c);
        for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)c[i]) * 0x100000001b3u;
    }
    return hash;
}

static int key_text_compare(const char *a, const char *b) {
    while (*a != '"' && *b != '"') {
        char x[4] = {0}, y[4] = {0};
        json_decode_char(&a, x);
        json_decode_char(&b, y);
        int order = memcmp(x, y, 4);
        if (order != 0) return order;
    }
    return (*a != '"') - (*b != '"');
}

/* By hash, then text (so that forced collisions stay cheap), then place. */
static int key_compare(const void *a, const void *b) {
    const Key *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    int order = key_text_compare(x->at, y->at);
    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

static Status push_key(Scan *s, const char *at) {
    if (s->key_count == s->key_capacity) {
        int64_t capacity = s->key_capacity > 0 ? 2 * s->key_capacity : 64;
        void *block = s->keys;
        TRY(mem_grow(&block, capacity, sizeof(Key), "JSON keys"));
        s->keys = block;
        s->key_capacity = capacity;
    }
    s->keys[s->key_count++] = (Key){key_hash(at), at};
    return STATUS_OK;
}

static Status duplicate(const Scan *s, const char *at) {
    char key[64], shown[256], reason[300];
    size_t length = 0;
    while (at[length] != '"' && length < sizeof key - 1) {
        length += at[length] == '\\' && length < sizeof key - 2 ? 2 : 1;
    }
    snprintf(key, sizeof key, "%.*s", (int)length, at);
    snprintf(reason, sizeof reason, "duplicate key '%s'", text_printable(key, shown, sizeof shown));
    return fault_at(s, at - 1, reason);
}

/* Duplicate check of the innermost object, whose keys start at index `first`. */
static Status close_object(Scan *s, int64_t first) {
    Key *keys = s->keys + first;
    int64_t count = s->key_count - first;
    s->key_count = first;
    if (count < 2) return STATUS_OK;
    qsort(keys, (size_t)count, sizeof(Key), key_compare);
    for (int64_t i = 1; i < count; i++) {
        if (keys[i].hash == keys[i - 1].hash && key_text_compare(keys[i].at, keys[i - 1].at) == 0) {
            return duplicate(s, keys[i].at);
        }
    }
    return STATUS_OK;
}

static Status scan_value(Scan *s);

static Status scan_member(Scan *s) {
    const char *key = s->at + 1;
    TRY(scan_string(s));
    TRY(push_key(s, key));
    skip_space(s);
    if (s->at >= s->end || *s->at != ':') return fault(s, "expected ':'");
    s->at++;
    return scan_value(s);
}

static Status scan_container(Scan *s, bool object) {
    char close = object ? '}' : ']';
    int64_t first = s->key_count;
    if (++s->depth > JSON_MAX_DEPTH) return fault(s, "nested deeper than 64 levels");
    s->at++;
    skip_space(s);
    bool more = s->at >= s->end || *s->at != close;
    while (more) {
        skip_space(s);
        TRY(object ? scan_member(s) : scan_value(s));
        skip_space(s);
        if (s->at < s->end && *s->at == close) break;
        if (s->at >= s->end || *s->at != ',') {
            return fault(s, object ? "expected ',' or '}'" : "expected ',' or ']'");
        }
        s->at++;
    }
    s->at++;
    s->depth--;
    return object ? close_object(s, first) : STATUS_OK;
}

static Status scan_value(Scan *s) {
    skip_space(s);
    if (s->at >= s->end) return fault(s, "");
    char c = *s->at;
    if (c == '{' || c == '[') return scan_container(s, c == '{');
    if (c == '"') return scan_string(s);
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    return scan_word(s);
}

Status json_check(const char *text, size_t size, const char *name) {
    Scan s = {.begin = text, .at = text, .end = text + size, .name = name};
    Status status = scan_value(&s);
    skip_space(&s);
    if (status == STATUS_OK && s.at < s.end) {
        status = fault(&s, "unexpected bytes after the JSON value");
    }
    mem_free(s.keys);
    return status;
}
