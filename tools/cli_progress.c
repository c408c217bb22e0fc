/* The progress line: rewritten in place on a terminal, now and then a plain line elsewhere, so that
 * log files are not flooded. */
#include "tools/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"

static bool line_shown;   /* a line without newline stands on the terminal */
static double last_shown; /* seconds, monotonic; 0: never */

static int terminal_columns(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

void progress_line(double every_s, const char *format, ...) {
    if (common.quiet || !common.progress || !output_is_mine()) return;
    bool terminal = isatty(STDERR_FILENO) && !output_is_json();
    double now = seconds_now(), least = terminal ? 0.1 : every_s;
    bool first = last_shown <= 0;
    if (!first && now - last_shown < least) return;
    last_shown = now;
    if (first && !terminal && every_s > 0) return; /* what is quickly over leaves no line */

    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!terminal) {
        output_progress(text);
        return;
    }
    int columns = terminal_columns();
    if ((int)strlen(text) >= columns)
        text[columns - 1] = 0; /* a wrapped line cannot be rewritten */
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    line_shown = true;
}

void progress_eta(double seconds, char *out, size_t size) {
    if (!(seconds >= 0) || seconds > 1e8) {
        snprintf(out, size, "-");
        return;
    }
    const long s = lround(seconds);
    if (s >= 3600)
        snprintf(out, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, size, "%ld:%02ld", s / 60, s % 60);
}

void progress_clear(void) {
    if (!line_shown) return;
    fputs("\r\033[K", stderr);
    line_shown = false;
}

void progress_end(void) {
    progress_clear();
    fflush(stderr);
    last_shown = 0;
}
