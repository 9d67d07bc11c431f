{{/* Labels of everything; call with (dict "root" $ "component" "operator"). */}}
{{- define "meridian.labels" -}}
{{ include "meridian.selector" . }}
app.kubernetes.io/part-of: meridian
app.kubernetes.io/managed-by: {{ .root.Release.Service | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end }}

{{- define "meridian.selector" -}}
app.kubernetes.io/name: {{ printf "meridian-%s" .component | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end }}

{{/* Prometheus finds pods by these. */}}
{{- define "meridian.scrape" -}}
prometheus.io/scrape: "true"
prometheus.io/port: {{ . | quote }}
prometheus.io/path: /metrics
{{- end }}

{{/* What every pod of the chart has in common: the restricted profile and where it may run. */}}
{{- define "meridian.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . | quote }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "meridian.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "meridian.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* A variable from a Secret; (dict "name" "MERIDIAN_X" "secret" "s" "key" "k"). */}}
{{- define "meridian.fromSecret" -}}
- name: {{ .name | quote }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret | quote }}
      key: {{ .key | quote }}
{{- end }}

{{/* The pod's own name, which is the replica's name everywhere. */}}
{{- define "meridian.replica" -}}
- name: MERIDIAN_REPLICA
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}
