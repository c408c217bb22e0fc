/* Walking JSON text that json_check() accepted: no syntax error is possible here. */
#include "core/json_scan.h"

#include <stdlib.h>
#include <string.h>

static void skip_space(JsonCursor *c) {
    while (c->at < c->end &&
           (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) {
        c->at++;
    }
}

char json_peek(JsonCursor *c) {
    skip_space(c);
    return c->at < c->end ? *c->at : '\0';
}

void json_enter(JsonCursor *c) {
    skip_space(c);
    c->at++;
}

bool json_more(JsonCursor *c) {
    char next = json_peek(c);
    if (next == ',') {
        c->at++;
        return true;
    }
    if (next != '}' && next != ']') return next != '\0';
    c->at++;
    return false;
}

size_t json_string_span(JsonCursor *c) {
    skip_space(c);
    const char *p = c->at + 1;
    while (*p != '"') p += *p == '\\' ? 2 : 1;
    return (size_t)(p + 1 - c->at);
}

static uint32_t hex4(const char *p) {
    char digits[5] = {p[0], p[1], p[2], p[3], '\0'};
    return (uint32_t)strtoul(digits, NULL, 16);
}

static size_t utf8_encode(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(lead[length] | code);
    return length;
}

size_t json_decode_char(const char **p, char out[4]) {
    const char *at = *p;
    if (*at != '\\') {
        unsigned char lead = (unsigned char)*at;
        size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        memcpy(out, at, length);
        *p = at + length;
        return length;
    }
    if (at[1] != 'u') {
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        out[0] = to[strchr(from, at[1]) - from];
        *p = at + 2;
        return 1;
    }
    uint32_t code = hex4(at + 2);
    *p = at + 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        code = 0x10000 + ((code - 0xd800) << 10) + (hex4(at + 8) - 0xdc00);
        *p = at + 12;
    }
    return utf8_encode(code, out);
}

size_t json_take_string(JsonCursor *c, char *out) {
    skip_space(c);
    const char *p = c->at + 1;
    size_t length = 0;
    while (*p != '"') {
        char decoded[4];
        size_t n = json_decode_char(&p, decoded);
        memcpy(out + length, decoded, n);
        length += n;
    }
    out[length] = '\0';
    c->at = p + 1;
    if (json_peek(c) == ':') c->at++;
    return length;
}

void json_skip_key(JsonCursor *c) {
    c->at += json_string_span(c);
    if (json_peek(c) == ':') c->at++;
}

bool json_take_int(JsonCursor *c, int64_t *value) {
    char first = json_peek(c);
    const char *start = c->at;
    json_skip(c);
    if (first != '-' && (first < '0' || first > '9')) return false;
    const char *p = start + (first == '-');
    uint64_t magnitude = 0;
    for (; p < c->at; p++) {
        if (*p < '0' || *p > '9') return false;
        if (__builtin_mul_overflow(magnitude, 10u, &magnitude)) return false;
        if (__builtin_add_overflow(magnitude, (uint64_t)(*p - '0'), &magnitude)) return false;
    }
    if (magnitude > INT64_MAX) return false;
    *value = first == '-' ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

static void skip_rest_of_word(JsonCursor *c) {
    while (c->at < c->end && strchr(",:[]{}\" \t\r\n", *c->at) == NULL) c->at++;
}

void json_skip(JsonCursor *c) {
    int depth = 0;
    do {
        char next = json_peek(c);
        if (next == '"') {
            c->at += json_string_span(c);
        } else {
            depth += (next == '{' || next == '[') - (next == '}' || next == ']');
            c->at++;
            if (strchr(",:[]{}", next) == NULL) skip_rest_of_word(c);
        }
    } while (depth > 0);
}
