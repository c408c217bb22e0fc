/* INI files. inih splits sections, comments and keys; values are taken from our own copy of the
 * line, because inih cuts lines at 200 bytes, values at " ;", and knows no quotes. */
#include "core/config_internal.h"

#include <stdio.h>
#include <string.h>

#include <ini.h>

#include "core/file.h"
#include "core/memory.h"

enum { WHERE = 480, SHOWN = 120, MAX_NAME_LENGTH = 48 };

typedef struct Reading {
    Config *config;
    const char *name; /* of the file, as given by the user */
    char shown[WHERE - 24];
    bool skip_unknown_sections;
    bool may_include;
    int depth; /* of includes */
    int file;
    char *next, *end; /* text not yet read; lines are cut in place */
    int line;
    char *value; /* of the current line, after the separator */
    bool in_section;
    Status status;
} Reading;

static Status read_buffer(Config *c, char *text, size_t size, Reading setup);

static void where_text(const Reading *r, char where[WHERE]) {
    snprintf(where, WHERE, "%s:%d", r->shown, r->line);
}

static Status fault(const Reading *r, const char *reason) {
    return status_set(STATUS_DATA, "%s:%d: %s", r->shown, r->line, reason);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static char *trim(char *text) {
    while (is_blank(*text)) text++;
    size_t length = strlen(text);
    while (length > 0 && is_blank(text[length - 1])) text[--length] = '\0';
    return text;
}

static bool is_comment_or_end(const char *text) {
    while (is_blank(*text)) text++;
    return *text == '\0' || *text == ';' || *text == '#';
}

static int hex_digit(char c) {
    const char *digits = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c | ('A' <= c && c <= 'F' ? 0x20 : 0)) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* A value in double quotes, decoded in place: \" \\ \n \t \xNN. */
static Status unquote(const Reading *r, char *text) {
    const char *in = text + 1;
    char *out = text;
    while (*in != '"') {
        if (*in == '\0') return fault(r, "closing quote is missing");
        if (*in != '\\') {
            *out++ = *in++;
            continue;
        }
        char kind = in[1];
        in += 2;
        if (kind == 'x' && hex_digit(in[0]) >= 0 && hex_digit(in[1]) >= 0) {
            *out = (char)(hex_digit(in[0]) * 16 + hex_digit(in[1]));
            if (*out == '\0') return fault(r, "NUL byte in a value");
            out++;
            in += 2;
        } else if (kind == 'n' || kind == 't') {
            *out++ = kind == 'n' ? '\n' : '\t';
        } else if (kind == '"' || kind == '\\') {
            *out++ = kind;
        } else {
            return fault(r, "unknown escape in a quoted value (known: \\\" \\\\ \\n \\t \\xNN)");
        }
    }
    if (!is_comment_or_end(in + 1)) return fault(r, "unexpected text after the closing quote");
    *out = '\0';
    return STATUS_OK;
}

/* Brings the raw text behind the separator into its final form, in place. */
static Status finish_value(Reading *r) {
    r->value = trim(r->value);
    if (r->value[0] == '"') return unquote(r, r->value);
    for (char *p = r->value; *p != '\0'; p++) {
        if ((*p == ';' || *p == '#') && (p == r->value || is_blank(p[-1]))) {
            *p = '\0';
            break;
        }
    }
    r->value = trim(r->value);
    return STATUS_OK;
}

/* What inih shall see of a line: nothing, "[section]" or "key=". */
static Status prepare_line(Reading *r, char *line, char *out, size_t size) {
    out[0] = '\0';
    if (is_comment_or_end(line)) return STATUS_OK;
    char *stop;
    if (line[0] == '[') {
        stop = strchr(line, ']');
        if (stop == NULL) return fault(r, "']' is missing");
        if (!is_comment_or_end(stop + 1)) return fault(r, "unexpected text after ']'");
        r->in_section = true;
    } else {
        stop = strpbrk(line, "=:");
        if (stop == NULL) return fault(r, "expected 'key = value' or '[section]'");
        if (stop == line) return fault(r, "the key is missing");
        r->value = stop + 1;
    }
    size_t length = (size_t)(stop + 1 - line);
    if (length > MAX_NAME_LENGTH || length >= size) {
        return fault(r, "the name is longer than 48 bytes");
    }
    memcpy(out, line, length);
    out[length] = '\0';
    return STATUS_OK;
}

/* inih's fgets: NULL ends the reading. */
static char *next_line(char *out, int size, void *user) {
    Reading *r = user;
    if (r->status != STATUS_OK || r->next == r->end || size < 2) return NULL;
    char *line = r->next;
    char *newline = memchr(line, '\n', (size_t)(r->end - line));
    r->next = newline != NULL ? newline + 1 : r->end;
    if (newline != NULL) *newline = '\0'; /* else the buffer's own NUL ends the line */
    r->line++;
    if (r->line == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0) line += 3;
    r->status = prepare_line(r, trim(line), out, (size_t)size);
    if (r->status == STATUS_OK) return out;
    return NULL;
}

static Status include_file(Reading *r) {
    if (!r->may_include) return fault(r, "'include' is not possible here");
    if (r->value[0] == '\0') return fault(r, "'include' needs a file name");
    if (r->depth >= CONFIG_MAX_INCLUDES) {
        return fault(r, "includes are nested deeper than 8 files; does a file include itself?");
    }
    const char *slash = strrchr(r->name, '/');
    char *folder, *path;
    TRY(mem_string_n(&folder, slash != NULL ? r->name : "",
                     slash != NULL ? (size_t)(slash - r->name + 1) : 0));
    Status s = r->value[0] == '/'  ? mem_string(&path, r->value)
               : folder[0] == '\0' ? mem_string(&path, r->value)
                                   : path_join(&path, folder, r->value);
    mem_free(folder);
    TRY(s);
    char *text;
    size_t size;
    s = file_read(path, CONFIG_MAX_BYTES, &text, &size);
    if (s != STATUS_OK) {
        s = status_context(s, "%s:%d: include", r->shown, r->line);
    } else {
        s = read_buffer(r->config, text, size,
                        (Reading){.name = path, .may_include = true, .depth = r->depth + 1});
        mem_free(text);
    }
    mem_free(path);
    return s;
}

static Status take_pair(Reading *r, const char *section, const char *key) {
    char where[WHERE];
    where_text(r, where);
    TRY(finish_value(r));
    if (!r->in_section) {
        if (strcmp(key, "include") == 0) return include_file(r);
        char shown[SHOWN];
        return status_set(STATUS_DATA, "%s: key '%s' stands before any [section]", where,
                          text_printable(key, shown, sizeof shown));
    }
    Place place;
    if (!config_find(r->config, section, key, &place)) {
        bool skip = r->skip_unknown_sections && config_find_section(r->config, section) == NULL;
        return skip ? STATUS_OK : config_unknown_key(r->config, section, key, where, STATUS_DATA);
    }
    if (place.slot->file == r->file) {
        return status_set(STATUS_DATA, "%s: duplicate key '%s' in [%s]; first set on line %d",
                          where, key, section, place.slot->line);
    }
    place.slot->file = r->file;
    place.slot->line = r->line;
    return config_store(&place, r->value, where, STATUS_DATA);
}

static int on_pair(void *user, const char *section, const char *key, const char *value) {
    Reading *r = user;
    (void)value; /* cut by inih; ours is in r->value */
    if (r->status == STATUS_OK) r->status = take_pair(r, section, key);
    return r->status == STATUS_OK;
}

/* `text` is NUL-terminated at `size` and is changed. */
static Status read_buffer(Config *c, char *text, size_t size, Reading setup) {
    Reading r = setup;
    r.config = c;
    r.file = ++c->files;
    r.next = text;
    r.end = text + size;
    text_printable(r.name, r.shown, sizeof r.shown);
    const char *nul = memchr(text, '\0', size);
    if (nul != NULL) {
        r.line = 1;
        for (const char *p = text; p < nul; p++) r.line += *p == '\n';
        return fault(&r, "NUL byte; expected a text file");
    }
    int bad_line = ini_parse_stream(next_line, &r, on_pair, &r);
    if (r.status == STATUS_OK && bad_line != 0) {
        r.line = bad_line > 0 ? bad_line : r.line;
        return fault(&r, "not understood; expected 'key = value' or '[section]'");
    }
    return r.status;
}

Status config_read_file(Config *c, const char *path) {
    char *text;
    size_t size;
    TRY(file_read(path, CONFIG_MAX_BYTES, &text, &size));
    Status s = read_buffer(c, text, size, (Reading){.name = path, .may_include = true});
    mem_free(text);
    return s;
}

Status config_read_text(Config *c, const char *text, size_t size, const char *name,
                        bool skip_unknown_sections) {
    if (size > CONFIG_MAX_BYTES) {
        return status_set(STATUS_DATA, "%s: %zu bytes, but at most %d are accepted", name, size,
                          CONFIG_MAX_BYTES);
    }
    void *block;
    TRY(mem_alloc(&block, (int64_t)size + 1, 1, "a configuration's text"));
    memcpy(block, text, size);
    Status s = read_buffer(c, block, size,
                           (Reading){.name = name, .skip_unknown_sections = skip_unknown_sections});
    mem_free(block);
    return s;
}
