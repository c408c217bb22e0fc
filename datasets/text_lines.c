#include <string.h>

#include "core/file.h"
#include "core/memory.h"
#include "datasets/folder_internal.h"

Status text_lines_open(const char *path, TextLines *out) {
    const size_t limit = (size_t)256 << 20;
    size_t size;
    *out = (TextLines){0};
    text_printable(path, out->shown, sizeof out->shown);
    TRY(file_read(path, limit, &out->text, &size));
    if (memchr(out->text, '\0', size) != NULL) {
        text_lines_close(out);
        return status_set(STATUS_DATA, "%s: a NUL byte: not a text file", out->shown);
    }
    out->next = out->text;
    out->end = out->text + size;
    if (size >= 3 && memcmp(out->text, "\xEF\xBB\xBF", 3) == 0) out->next += 3;
    return STATUS_OK;
}

char *text_lines_next(TextLines *t) {
    if (t->next >= t->end) return NULL;
    char *line = t->next;
    char *stop = memchr(line, '\n', (size_t)(t->end - line));
    t->next = stop != NULL ? stop + 1 : t->end;
    if (stop == NULL) stop = t->end; /* file_read ends the text with a NUL of its own */
    if (stop > line && stop[-1] == '\r') stop--;
    *stop = '\0';
    t->number++;
    return line;
}

void text_lines_close(TextLines *t) {
    mem_free(t->text);
    t->text = t->next = t->end = NULL;
}
