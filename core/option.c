/* One value: from text into its field and back. */
#include "core/config_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/utf8.h"

enum { MAX_CHOICES = 64, SHOWN = 80 };

static Status refuse(const Option *o, const char *text, Status code, const char *expected) {
    char shown[SHOWN];
    return status_set(code, "'%s' is '%s'; expected %s", o->key,
                      text_printable(text, shown, sizeof shown), expected);
}

static Status parse_bool(const Option *o, bool *field, const char *text, Status code) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (int i = 0; i < 8; i++) {
        if (strcmp(text, words[i]) == 0) {
            *field = i % 2 == 1;
            return STATUS_OK;
        }
    }
    return refuse(o, text, code, "true or false");
}

static bool within(const Option *o, double value) {
    return (o->min == 0 && o->max == 0) || (value >= o->min && value <= o->max);
}

static Status refuse_range(const Option *o, const char *text, Status code) {
    char expected[96];
    /* Limits beyond any sensible value stand for "none on this side". */
    if (o->max >= 1e15) {
        snprintf(expected, sizeof expected, "at least %.10g", o->min);
    } else {
        snprintf(expected, sizeof expected, "%.10g to %.10g", o->min, o->max);
    }
    return refuse(o, text, code, expected);
}

static Status parse_int(const Option *o, int64_t *field, const char *text, Status code) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0') return refuse(o, text, code, "a whole number");
    if (errno == ERANGE) return refuse(o, text, code, "a whole number of 64 bits");
    if (!within(o, (double)value)) return refuse_range(o, text, code);
    *field = value;
    return STATUS_OK;
}

static Status parse_float(const Option *o, double *field, const char *text, Status code) {
    char *end;
    double value = strtod(text, &end);
    if (end > text && o->max == 1 && strcmp(end, "%") == 0) { /* a share: 2% is 0.02 */
        value /= 100;
        end++;
    }
    if (end == text || *end != '\0') return refuse(o, text, code, "a number");
    if (!isfinite(value)) return refuse(o, text, code, "a finite number");
    if (!within(o, value)) return refuse_range(o, text, code);
    *field = value;
    return STATUS_OK;
}

/* "a|b|c" -> words in `copy`; returns their number. */
static int split_choices(const char *choices, char copy[CONFIG_TEXT], const char **words) {
    int count = 0;
    snprintf(copy, CONFIG_TEXT, "%s", choices);
    char *rest = NULL;
    for (char *w = strtok_r(copy, "|", &rest); w != NULL && count < MAX_CHOICES;
         w = strtok_r(NULL, "|", &rest)) {
        words[count++] = w;
    }
    return count;
}

static Status parse_choice(const Option *o, int *field, const char *text, Status code) {
    char copy[CONFIG_TEXT], expected[CONFIG_TEXT] = "one of";
    const char *words[MAX_CHOICES];
    int count = split_choices(o->choices, copy, words);
    for (int i = 0; i < count; i++) {
        if (strcmp(text, words[i]) == 0) {
            *field = i;
            return STATUS_OK;
        }
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s %s", i > 0 ? "," : "", words[i]);
    }
    const char *near = nearest_name(text, words, count);
    size_t used = strlen(expected);
    if (near != NULL)
        snprintf(expected + used, sizeof expected - used, "; did you mean '%s'?", near);
    return refuse(o, text, code, expected);
}

Status option_parse(const Option *o, void *values, const char *text, Status code) {
    void *field = (char *)values + o->offset;
    switch (o->type) {
    case OPTION_BOOL:
        return parse_bool(o, field, text, code);
    case OPTION_INT:
        return parse_int(o, field, text, code);
    case OPTION_FLOAT:
        return parse_float(o, field, text, code);
    case OPTION_CHOICE:
        return parse_choice(o, field, text, code);
    case OPTION_STRING:
        break;
    }
    if (strlen(text) >= CONFIG_TEXT) {
        return status_set(code, "'%s' has %zu bytes; expected at most %d", o->key, strlen(text),
                          CONFIG_TEXT - 1);
    }
    strcpy(field, text);
    return STATUS_OK;
}

/* Whether a bare value would not read back: outer blanks, a comment sign after a blank, a quote in
 * front, bytes that are no printable UTF-8. */
static bool needs_quotes(const char *text) {
    size_t length = strlen(text);
    if (length == 0) return false;
    if (strchr(" \t\";#", text[0]) != NULL || strchr(" \t", text[length - 1]) != NULL) return true;
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        size_t step = utf8_length((const unsigned char *)text + i, length - i);
        if (step == 0 || c < 0x20 || c == 0x7f) return true;
        if ((c == ';' || c == '#') && text[i - 1] == ' ') return true;
        i += step;
    }
    return false;
}

static void quote(const char *text, char *out, size_t size) {
    size_t length = strlen(text), used = 1;
    if (size < 8) return;
    out[0] = '"';
    for (size_t i = 0; i < length && used + 6 < size;) {
        size_t step = utf8_length((const unsigned char *)text + i, length - i);
        unsigned char c = (unsigned char)text[i];
        if (step == 0 || c < 0x20 || c == 0x7f) {
            used += (size_t)snprintf(out + used, size - used, "\\x%02x", c);
            step = 1;
        } else if (c == '"' || c == '\\') {
            out[used++] = '\\';
            out[used++] = (char)c;
        } else {
            memcpy(out + used, text + i, step);
            used += step;
        }
        i += step;
    }
    out[used] = '"';
    out[used + 1] = '\0';
}

/* The shortest decimal that reads back to the same double. */
static void float_text(double value, char *out, size_t size) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    snprintf(out, size, "%s", text);
}

void option_value_text(const Option *o, const void *values, char *out, size_t size) {
    const void *field = (const char *)values + o->offset;
    if (size == 0) return;
    out[0] = '\0';
    switch (o->type) {
    case OPTION_BOOL:
        snprintf(out, size, "%s", *(const bool *)field ? "true" : "false");
        break;
    case OPTION_INT:
        snprintf(out, size, "%lld", (long long)*(const int64_t *)field);
        break;
    case OPTION_FLOAT:
        float_text(*(const double *)field, out, size);
        break;
    case OPTION_STRING:
        if (needs_quotes(field)) {
            quote(field, out, size);
        } else {
            snprintf(out, size, "%s", (const char *)field);
        }
        break;
    case OPTION_CHOICE: {
        char copy[CONFIG_TEXT];
        const char *words[MAX_CHOICES];
        int count = split_choices(o->choices, copy, words), index = *(const int *)field;
        snprintf(out, size, "%s", index >= 0 && index < count ? words[index] : "?");
        break;
    }
    }
}
