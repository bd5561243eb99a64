{{- define "mien.labels" -}}
app.kubernetes.io/name: mien
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "mien.image" -}}
{{ required "set image.repository: no image is published, so build deploy/Containerfile and push it" .Values.image.repository }}:{{ required "set image.tag to the one that you pushed" .Values.image.tag }}
{{- end }}

{{/* Service and StatefulSet of a server: root, name, server (its values), ports, grace, secret (its URL's) and field. */}}
{{- define "mien.server" -}}
{{- $secrets := list "database_url" "store_url" -}}
{{- range $secrets }}
{{- if hasKey $.server.settings . }}
{{- fail (printf "%s.settings.%s would put a password into the values: name a Secret in %s" $.name . $.secretName) }}
{{- end }}
{{- end }}
apiVersion: v1
kind: Service
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels: {{- include "mien.labels" . | nindent 4 }}
  {{- with .server.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .server.service.type }}
  selector: {{- include "mien.labels" . | nindent 4 }}
  ports:
    {{- range .ports }}
    - {name: {{ .name }}, port: {{ .port }}, targetPort: {{ .name }}}
    {{- end }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels: {{- include "mien.labels" . | nindent 4 }}
spec:
  # One: two programs never share a folder. Replicas of a coordinator are a matter of docs/operator/production.md.
  replicas: 1
  serviceName: {{ .root.Release.Name }}-{{ .name }}
  selector:
    matchLabels: {{- include "mien.labels" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "mien.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      # Of a release that is called mien they would look like settings.
      enableServiceLinks: false
      # Longer than drain_s: what is under way is finished first.
      terminationGracePeriodSeconds: {{ .grace }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 7443
        runAsGroup: 7443
        fsGroup: 7443
        # Only the empty volume is given to the group: keys stay readable by their owner alone.
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      {{- with .root.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "mien.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- if .root.Values.setUp }}
          command: [sh, -c, "trap 'exit 0' TERM; sleep infinity & wait"]
          {{- else }}
          command: [mien-{{ .name }}, serve, --json]
          {{- with .ready }}
          readinessProbe: {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          ports:
            {{- range concat .ports (.inside | default list) }}
            - {name: {{ .name }}, containerPort: {{ .port }}}
            {{- end }}
          env:
            {{- range $field, $value := merge (deepCopy .server.settings) (.defaults | default dict) }}
            - name: MIEN_{{ upper $.name }}_{{ upper $field }}
              value: {{ $value | quote }}
            {{- end }}
            {{- with .secret.name }}
            - name: MIEN_{{ upper $.name }}_{{ upper $.field }}
              valueFrom:
                secretKeyRef: {name: {{ . }}, key: {{ $.secret.key }}}
            {{- end }}
            - {name: TMPDIR, value: /tmp}
          {{- with .server.bucketSecret }}
          envFrom:
            - secretRef: {name: {{ . }}}
          {{- end }}
          volumeMounts:
            - {name: home, mountPath: /var/lib/mien}
            - {name: tmp, mountPath: /tmp}
          resources: {{- toYaml .server.resources | nindent 12 }}
      volumes:
        - name: tmp
          emptyDir: {}
  volumeClaimTemplates:
    - metadata:
        name: home
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .server.volume.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .server.volume.size }}
{{- end }}
