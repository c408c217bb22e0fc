#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"

size_t utf8_length(const unsigned char *p, size_t left) {
    if (left == 0) return 0;
    unsigned char c = p[0];
    if (c < 0x80) return 1;
    size_t length = c >= 0xc2 && c <= 0xdf   ? 2
                    : (c & 0xf0) == 0xe0     ? 3
                    : c >= 0xf0 && c <= 0xf4 ? 4
                                             : 0;
    if (length == 0 || length > left) return 0;
    /* The second byte carries the rules against overlong forms, surrogates and values past
     * U+10FFFF. */
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
    }
    return length;
}

/* C1 controls (U+0080 to U+009F) are well-formed UTF-8, but terminals obey them like ESC sequences.
 */
static int is_safe(const unsigned char *p, size_t length) {
    if (length == 1) return p[0] >= 0x20 && p[0] != 0x7f;
    return length > 1 && !(p[0] == 0xc2 && p[1] < 0xa0);
}

char *text_printable(const char *text, char *out, size_t size) {
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text), used = 0;
    if (size == 0) return out;
    while (left > 0) {
        size_t length = utf8_length(p, left);
        if (is_safe(p, length)) {
            if (used + length >= size) break;
            memcpy(out + used, p, length);
            used += length;
        } else {
            length = 1;
            if (used + 4 >= size) break;
            snprintf(out + used, size - used, "\\x%02x", p[0]);
            used += 4;
        }
        p += length;
        left -= length;
    }
    out[used] = '\0';
    return out;
}

bool utf8_valid(const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        const size_t n = utf8_length((const unsigned char *)text, left);
        if (n == 0) return false;
        text += n;
        left -= n;
    }
    return true;
}
